import { recall, remember } from '../lib/storage';

type Kind = MediaDeviceInfo['kind'];

/** Microphones, loudspeakers and cameras. They have names only once the person has allowed one. */
class Devices {
  all = $state<MediaDeviceInfo[]>([]);
  #picked = $state<Record<string, string>>(recall('devices', {}));
  #watched = false;

  /** Whether a page may choose one. Firefox lets it choose no loudspeaker for the sound that it makes itself. */
  canPick(kind: Kind): boolean {
    return kind !== 'audiooutput' || 'setSinkId' in AudioContext.prototype;
  }

  of(kind: Kind): MediaDeviceInfo[] {
    return this.all.filter((device) => device.kind === kind && device.deviceId);
  }

  /** The device that was chosen, if it is there; empty for the system's own. */
  chosen(kind: Kind): string {
    const id = this.#picked[kind] ?? '';
    return this.all.some((device) => device.kind === kind && device.deviceId === id) ? id : '';
  }

  pick(kind: Kind, id: string): void {
    this.#picked[kind] = id;
    remember('devices', $state.snapshot(this.#picked));
  }

  /** Look, and look again when something is plugged in or out. */
  async look(): Promise<void> {
    if (!navigator.mediaDevices) return;
    if (!this.#watched) {
      this.#watched = true;
      navigator.mediaDevices.addEventListener('devicechange', () => void this.look());
    }
    this.all = await navigator.mediaDevices.enumerateDevices().catch(() => []);
  }

  async microphone(): Promise<MediaStream> {
    return this.#ask({ audio: this.#sound() });
  }

  /** A camera, without sound; `facing` is for phones. */
  async camera(facing: 'user' | 'environment' = 'user'): Promise<MediaStream> {
    const id = this.chosen('videoinput');
    return this.#ask({ video: { width: { ideal: 640 }, height: { ideal: 480 }, ...(id ? { deviceId: { exact: id } } : { facingMode: facing }) } });
  }

  #sound(): MediaTrackConstraints {
    const id = this.chosen('audioinput');
    return { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1, ...(id ? { deviceId: { exact: id } } : {}) };
  }

  async #ask(wanted: MediaStreamConstraints): Promise<MediaStream> {
    if (!navigator.mediaDevices) throw new DOMException('no devices', 'NotSupportedError');
    const stream = await navigator.mediaDevices.getUserMedia(wanted);
    await this.look();
    return stream;
  }
}

export const devices = new Devices();

/** What a person can do about a microphone or camera that was not to be had; null if it is another mistake. */
export function explainDevice(error: unknown, what = 'microphone'): { code: string; message: string } | null {
  if (!window.isSecureContext) {
    const port = location.port || '80';
    return { code: 'not_secure', message: `Browsers give a ${what} to https pages and to localhost only. Start the server with antiphon serve --tls auto, which says what to do here, or use a tunnel: ssh -L ${port}:localhost:${port} SERVER, then http://localhost:${port}.` };
  }
  if (!(error instanceof DOMException)) return null;
  const messages: Record<string, string> = {
    NotAllowedError: `The ${what} is blocked for this page. Allow it beside the address, then try again.`,
    NotFoundError: `There is no ${what}. Plug one in, then try again.`,
    NotReadableError: `Another program uses the ${what}. Close it there, then try again.`,
    OverconstrainedError: `The ${what} that was chosen is gone. Choose another, then try again.`,
    InvalidStateError: 'The browser can play no sound. Plug in a loudspeaker or headphones, then try again.',
    AbortError: `The ${what} stopped. Try again.`,
    NotSupportedError: `This browser gives pages no ${what}.`,
  };
  const message = messages[error.name];
  return message ? { code: error.name, message } : null;
}
