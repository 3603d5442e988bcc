"""The engine `responses`: any server of the Responses API."""
