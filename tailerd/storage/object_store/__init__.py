"""Azure Blob Storage and Google Cloud Storage, through obstore.

`accounts` has their settings, `provider` resolves their URLs, `store` is an `ObjectStore` over
obstore, and `failures` maps its errors. Requests are retried by obstore; a conditional write whose
response was lost is recognised by a token in the file's metadata.
"""
