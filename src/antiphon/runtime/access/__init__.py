"""Who may use the server, and how much: keys, client secrets and rate limits."""

from antiphon.runtime.access.client_secrets import ClientSecretIssuer as ClientSecretIssuer
from antiphon.runtime.access.keys import Caller as Caller, Keyring as Keyring
from antiphon.runtime.access.rate_limits import Allowance as Allowance
