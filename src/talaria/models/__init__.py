"""Wire formats and the endpoints that speak them."""
