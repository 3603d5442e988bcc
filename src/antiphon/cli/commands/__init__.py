"""The commands, one module each; `main` imports a command when it runs."""
