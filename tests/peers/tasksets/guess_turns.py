import verifiers.v1 as vf


class Data(vf.TaskData):
    secret: int


class Guess(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment, reward = await talk.turn(), 0.0
            for left in (3, 2, 1, 0):
                if segment.terminated:
                    break
                said = segment.last_reply
                if said.isdigit() and int(said) == task.data.secret:
                    reward = (1 + left) / 4
                    break
                if left:
                    segment = await talk.turn(
                        "higher" if not said.isdigit() or int(said) < task.data.secret else "lower"
                    )
        talk.trace.record_reward("guessed", reward, 1.0)


class Guesses(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self):
        for secret in (3, 7, 1):
            yield Guess(Data(prompt="Guess a number from 1 to 9.", secret=secret), self.config.task)


__all__ = ["Guesses", "GuessEnv"]
