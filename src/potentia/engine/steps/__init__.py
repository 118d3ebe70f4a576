"""Steps of training: rows divided into passes, gradients of all lanes added up, one update for all lanes."""
