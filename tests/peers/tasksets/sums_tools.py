import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: int


class Tools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Tools(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def used_tool(self, trace: vf.Trace) -> float:
        return float(any("add" in (m.name or "add") for m in trace.tool_messages))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for a, b in ((2, 3), (40, 2)):
            yield Sum(
                Data(prompt=f"{a} + {b}?", system_prompt="Use add.", answer=a + b), self.config.task
            )


__all__ = ["Sums"]

if __name__ == "__main__":
    Tools.run()
