"""The OpenAI Responses API as a protocol machine."""

from antiphon.protocols.responses.request import ResolvedRequest as ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession as ResponsesSession
