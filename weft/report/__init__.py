"""What Weft says about itself: reports for people, built from the public surface of the layers below."""
