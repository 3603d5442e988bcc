"""What all commands share: the process around them, their options, and the server they talk to."""

from antiphon.cli.common.shell import Shell as Shell, UsageError as UsageError
