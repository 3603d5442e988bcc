"""The OpenAI Realtime API's wire types, in its GA and beta dialects."""
