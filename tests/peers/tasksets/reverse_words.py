import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class T(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Rev(vf.Taskset[T, vf.TasksetConfig]):
    def load(self):
        for w in ("hello", "world"):
            yield T(Data(prompt=f"Reverse {w}", answer=w[::-1]), self.config.task)


__all__ = ["Rev"]
