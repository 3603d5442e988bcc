import { toBase64 } from '../audio/base64';
import { devices, explainDevice } from '../audio/devices.svelte';

/** A picture as the protocol takes it. */
export interface Still {
  jpeg: string;
  width: number;
  height: number;
  bytes: number;
}

const LONGEST = 640; // models see tiles of some 450 pixels, so more only costs time
const QUALITY = 0.75;

/** A picture of at most `longest` pixels a side, as JPEG. */
export async function jpegOf(source: CanvasImageSource, width: number, height: number, longest = LONGEST): Promise<Still | null> {
  const scale = Math.min(1, longest / Math.max(width, height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.getContext('2d')!.drawImage(source, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, 'image/jpeg', QUALITY));
  if (!blob) return null;
  return { jpeg: toBase64(new Uint8Array(await blob.arrayBuffer())), width: canvas.width, height: canvas.height, bytes: blob.size };
}

/** The camera: its preview, and stills of it. */
class Camera {
  stream = $state.raw<MediaStream | null>(null);
  problem = $state<{ code: string; message: string } | null>(null);
  /** On phones: the camera beside the screen, or the one at the back. */
  facing = $state<'user' | 'environment'>('user');
  /** Only what is shown; the model sees it unmirrored, so that it can read. */
  isMirrored = $state(true);
  #eye: HTMLVideoElement | null = null;
  #asked = 0;

  get isOn(): boolean {
    return this.stream !== null;
  }

  /** Whether the person has allowed it before, so that a preview asks nothing. */
  async isAllowed(): Promise<boolean> {
    const status = await navigator.permissions?.query({ name: 'camera' as PermissionName }).catch(() => null);
    return status?.state === 'granted';
  }

  /** Show it. False if it was not to be had; `problem` says why. */
  async open(): Promise<boolean> {
    const asked = ++this.#asked;
    this.problem = null;
    try {
      const stream = await devices.camera(this.facing);
      if (asked !== this.#asked) {
        stream.getTracks().forEach((track) => track.stop());
        return this.isOn;
      }
      this.#stop();
      stream.getVideoTracks()[0]!.onended = () => this.#onLost();
      this.stream = stream;
      this.#eye = Object.assign(document.createElement('video'), { muted: true, playsInline: true, srcObject: stream });
      await this.#eye.play().catch(() => undefined);
      return true;
    } catch (error) {
      this.problem = explainDevice(error, 'camera') ?? { code: 'camera', message: error instanceof Error ? error.message : String(error) };
      return false;
    }
  }

  #onLost(): void {
    this.close();
    this.problem = { code: 'ended', message: 'The camera is gone. Plug it in, or choose another, then try again.' };
  }

  /** The other camera of a phone. */
  async flip(): Promise<void> {
    this.facing = this.facing === 'user' ? 'environment' : 'user';
    this.isMirrored = this.facing === 'user';
    devices.pick('videoinput', '');
    this.#stop(); // phones open no second camera beside the first
    await this.open();
  }

  /** What it sees; null while the page is hidden, when browsers stop the picture and people don't think of the camera. */
  async still(): Promise<Still | null> {
    const eye = this.#eye;
    if (!eye || document.hidden || eye.readyState < HTMLMediaElement.HAVE_CURRENT_DATA) return null;
    return jpegOf(eye, eye.videoWidth, eye.videoHeight);
  }

  close(): void {
    this.#asked += 1;
    this.#stop();
  }

  #stop(): void {
    this.stream?.getTracks().forEach((track) => {
      track.onended = null;
      track.stop();
    });
    if (this.#eye) this.#eye.srcObject = null;
    this.#eye = null;
    this.stream = null;
  }
}

export const camera = new Camera();
