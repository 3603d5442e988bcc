/** The two forms of the Realtime API: the one that is generally available, and the beta. */
export type Dialect = 'ga' | 'beta';

export interface Settings {
  instructions: string;
  voice: string;
  language: string;
  /** Whether the server finds the ends of turns, or the person by a button. */
  handsFree: boolean;
  tools: object[];
}

const BETA_NAMES: Record<string, string> = {
  'response.audio.delta': 'response.output_audio.delta',
  'response.audio.done': 'response.output_audio.done',
  'response.audio_transcript.delta': 'response.output_audio_transcript.delta',
  'response.audio_transcript.done': 'response.output_audio_transcript.done',
  'response.text.delta': 'response.output_text.delta',
  'response.text.done': 'response.output_text.done',
  'conversation.item.created': 'conversation.item.added',
};

/** An event's name in the general form. */
export const generalName = (type: string): string => BETA_NAMES[type] ?? type;

/** WebSocket subprotocols: pages can send no headers. */
export function subprotocols(dialect: Dialect, key: string): string[] {
  return ['realtime', ...(key ? [`openai-insecure-api-key.${key}`] : []), ...(dialect === 'beta' ? ['openai-beta.realtime-v1'] : [])];
}

/** The `session` of a `session.update`. Over WebRTC the sound has a form of its own. */
export function sessionOf(dialect: Dialect, settings: Settings, isCall: boolean): object {
  const { instructions, voice, language, handsFree, tools } = settings;
  const detection = handsFree ? { type: 'server_vad', create_response: true, interrupt_response: true } : null;
  const transcription = language ? { language } : {};
  const shared = { ...(instructions ? { instructions } : {}), ...(tools.length ? { tools, tool_choice: 'auto' } : {}) };
  if (dialect === 'beta') {
    return {
      ...shared,
      modalities: ['text', 'audio'],
      ...(voice ? { voice } : {}),
      ...(isCall ? {} : { input_audio_format: 'pcm16', output_audio_format: 'pcm16' }),
      input_audio_transcription: transcription,
      turn_detection: detection,
    };
  }
  const format = isCall ? {} : { format: { type: 'audio/pcm', rate: 24000 } };
  return {
    type: 'realtime',
    ...shared,
    output_modalities: ['audio'],
    audio: { input: { ...format, transcription, turn_detection: detection }, output: { ...format, ...(voice ? { voice } : {}) } },
  };
}
