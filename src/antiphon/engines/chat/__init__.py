"""The engine `chat`: any server of the Chat Completions API."""
