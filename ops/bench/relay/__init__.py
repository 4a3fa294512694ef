"""What a gateway costs between clients and a replica."""
