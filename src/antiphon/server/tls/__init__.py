"""HTTPS with certificates that the server makes itself: a local authority, the server's names, and its connections."""
