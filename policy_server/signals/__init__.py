"""What the engines' answers tell, as pure functions: bytes and headers in, core samples out."""
