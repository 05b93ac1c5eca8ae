"""A model's replicas scaled out and in while it serves."""
