"""Times small programs on one peer, in a process of its own: `programs_worker.py PEER THREADS CLOCK`.

It answers what `sweep_worker.py` does, and one request more: `result` runs a program once and writes what it returns to
a file, in float64 throughout if the peer is to give the result that all others are compared with.
"""

import sys

import numpy as np
import programs_texts
import sweep_worker
from programs_texts import PROGRAMS, Half, arguments_of
from worker import serve


class Timer(sweep_worker.Timer):
    """One peer, and the program that it is ready for."""

    def load(self, name):
        programs_texts.MADE.clear()
        program = PROGRAMS[name]
        return program.function, self.made(arguments_of(name)), program.compiled

    def made(self, values, wide=False):
        if isinstance(values, (list, tuple)):
            return [self.made(value, wide) for value in values]
        if isinstance(values, Half):
            return self.made(values.values, wide) if wide else self.words.operand(values.values, "bfloat16")
        if isinstance(values, np.ndarray):
            return self.words.operand(values.astype(np.float64) if wide and values.dtype == np.float32 else values)
        return values

    def result(self, name, path, wide):
        program = PROGRAMS[name]
        run = program.function if wide or not program.compiled else self.words.compiled(program.function)
        np.savez(path, *self.words.plain(run(*self.made(arguments_of(name), wide))))
        return {"written": path}


def main():
    peer, threads, clock = sys.argv[1:4]
    timers = []

    def start():
        timers.append(Timer(programs_texts.use(peer), int(threads), clock))
        return {"version": timers[0].words.VERSION, "names": list(PROGRAMS)}

    serve(start, lambda request: timers[0].answer(request))


if __name__ == "__main__":
    main()
