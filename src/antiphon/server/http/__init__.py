"""Shared by all HTTP routes: authentication, request bodies, errors, paging, access log."""
