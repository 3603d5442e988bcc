/** What the first visit hands to the chat: never by the address, as a link from elsewhere must not make the page ask something. */
export const starter = $state<{ question: string; withTool: boolean }>({ question: '', withTool: false });
