"""How large a table is, and how long its log has become."""
