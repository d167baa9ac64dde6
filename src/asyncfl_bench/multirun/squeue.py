"""Asks Slurm which jobs are active; needs submitit."""

from submitit.slurm.slurm import SlurmInfoWatcher


class Queue(SlurmInfoWatcher):
    """Asks squeue, which every cluster answers: sacct, submitit's choice, knows nothing without accounting.

    Slurm forgets a job some minutes after its end (MinJobAge), so one that is no longer listed has ended.
    """

    def _make_command(self) -> list[str] | None:
        asked = super()._make_command()  # None when no job is left
        return asked and ["squeue", "--me", "--states=all", "--array", "--noheader", "--format=%i|%T|%N"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        lines = string if isinstance(string, str) else string.decode()
        listed = super().read_info(f"JobID|State|NodeList\n{lines}")
        return {job: {"State": "ENDED"} for job in self._registered} | listed
