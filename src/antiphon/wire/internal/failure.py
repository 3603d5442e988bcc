"""An `ApiError` on its way between processes."""

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, ServerError


class Failure(Struct, frozen=True, array_like=True):
    """An error, with everything that its client sees of it."""

    message: str
    code: str | None
    param: str | None
    status: int
    type: str
    retry_after_s: float | None

    @classmethod
    def from_error(cls, error: ApiError) -> "Failure":
        """Pack an error."""
        return cls(error.message, error.code, error.param, error.status, error.type, error.retry_after_s)

    def to_error(self) -> ApiError:
        """Unpack it: by its status, as the client's error or as ours."""
        kind = ClientError if self.status < 500 else ServerError
        return kind(self.message, code=self.code, param=self.param, status=self.status, type=self.type, retry_after_s=self.retry_after_s)
