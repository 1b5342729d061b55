"""Other people's programs on Weft: each module here lets code written for another library run on `weft.core`.

A front end uses the public surface of `weft.core` only, and nothing in Weft imports a front end.
"""
