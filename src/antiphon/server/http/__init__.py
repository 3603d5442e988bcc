"""What all HTTP routes share: authentication, reading bodies, errors, paging."""
