"""Discord: a gateway connection that receives, and REST calls that send."""
