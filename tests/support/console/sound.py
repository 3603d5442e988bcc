"""A microphone that a test speaks into, and an ear on what the page plays."""

import base64
import io
import math
import wave
from array import array

MICROPHONE = """(() => {
  navigator.mediaDevices.getUserMedia = async () => {
    const context = new AudioContext({sampleRate: 48000});
    await context.resume();
    const out = context.createMediaStreamDestination();
    const silence = context.createConstantSource();
    silence.offset.value = 0;
    silence.connect(out);
    silence.start();
    window.__say = async (wav) => {
      const bytes = Uint8Array.from(atob(wav), (letter) => letter.charCodeAt(0));
      const source = context.createBufferSource();
      source.buffer = await context.decodeAudioData(bytes.buffer);
      source.connect(out);
      source.start();
    };
    return out.stream;
  };
})();"""
"""A microphone into which `say` plays; the page can't tell. Chromium's own fake is silent or loops."""

EAR = """(() => {
  const connect = AudioNode.prototype.connect;
  const heard = window.__heard = {rate: 0, parts: []};
  const listen = (node) => {
    const {context} = node;
    const ear = context.createScriptProcessor(1024, 1, 1);
    ear.onaudioprocess = ({inputBuffer}) => {
      heard.rate = context.sampleRate;
      heard.parts.push(Int16Array.from(inputBuffer.getChannelData(0), (x) => Math.max(-1, Math.min(1, x)) * 32767));
    };
    connect.call(node, ear);
    connect.call(ear, context.destination);
  };
  AudioNode.prototype.connect = function (to, ...rest) {
    if (to instanceof AudioDestinationNode) listen(this);
    return connect.call(this, to, ...rest);
  };
  const play = HTMLMediaElement.prototype.play;
  HTMLMediaElement.prototype.play = function () {
    if (this.srcObject) listen(new AudioContext().createMediaStreamSource(this.srcObject));
    return play.call(this);
  };
  window.__sound = () => {
    const all = new Int16Array(heard.parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of heard.parts) { all.set(part, at); at += part.length; }
    const bytes = new Uint8Array(all.buffer);
    let text = '';
    for (let from = 0; from < bytes.length; from += 8192) text += String.fromCharCode(...bytes.subarray(from, from + 8192));
    return {rate: heard.rate, pcm: btoa(text)};
  };
})();"""
"""Notes what goes to the loudspeaker, of contexts and of the streams of calls."""

DEPRECATED = "ScriptProcessorNode"
"""What Chromium warns of, because of the ear."""


def wav(pcm: bytes, rate: int) -> bytes:
    """A WAV file of 16-bit samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm)
    return file.getvalue()


def tone(seconds: float, rate: int = 24_000) -> bytes:
    """A WAV file that a detector by level takes for speech."""
    return wav(array("h", (int(9000 * math.sin(2 * math.pi * 300 * n / rate)) for n in range(int(seconds * rate)))).tobytes(), rate)


def say(page, file: bytes) -> None:
    """Speak a WAV file into the page's microphone; it goes on while the test does."""
    page.evaluate("wav => __say(wav)", base64.b64encode(file).decode())


def heard(page) -> tuple["array[int]", int]:
    """The samples that were played so far, and their rate."""
    sound = page.evaluate("__sound()")
    return array("h", base64.b64decode(sound["pcm"])), int(sound["rate"])


def loud_part(samples: "array[int]", rate: int, margin_s: float = 0.3) -> bytes:
    """What is between the first and the last loud sample, with a margin: 16-bit samples, empty if all is silent."""
    loud = [at for at, sample in enumerate(samples) if abs(sample) > 600]
    if not loud:
        return b""
    margin = int(margin_s * rate)
    return samples[max(0, loud[0] - margin) : loud[-1] + margin].tobytes()
