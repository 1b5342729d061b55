"""From a graph to a plan: the ordered passes, each a function from graph to graph (or to the plan), each verified and
shown as text."""
