"""`antiphon sessions`: recordings of sessions, and what can be made of them."""
