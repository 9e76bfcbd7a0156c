"""What the table format says, without IO: manifests, fragments, fields, transactions. Pure."""
