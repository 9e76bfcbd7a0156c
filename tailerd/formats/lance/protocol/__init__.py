"""The table format without IO: manifests, fragments, fields, transactions. Pure."""
