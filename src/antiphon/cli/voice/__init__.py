"""`antiphon talk` and `antiphon duplex`: live conversations in the terminal."""
