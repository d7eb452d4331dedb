"""What layers are fed, as streamed moments, and fitting them to it again in closed form."""
