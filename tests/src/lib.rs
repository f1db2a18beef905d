//! What the end-to-end tests share. Nothing here is part of the product.
