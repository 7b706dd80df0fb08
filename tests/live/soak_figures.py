"""Memory and descriptors of long-lived processes over time: as CSV, as a table, and judged."""
import statistics

GROWTH = 8 << 20  # bytes that one may hold more at the end than after a quarter of its life
SPARE = 8         # descriptors, likewise
LONG = 20         # samples without which there is nothing to compare


class Figures:
    def __init__(self, path, seconds):
        self.gap_s = min(15.0, max(1.0, seconds / 200))
        self.rows = {}  # (name, life): [(hours, bytes, descriptors)]
        self.file = open(path, "w")
        self.file.write("seconds,days,process,life,rss_bytes,descriptors\n")

    def take(self, now, days, residents):
        for resident in residents:
            if not resident.process.alive():
                continue
            memory, descriptors = resident.sample()
            self.rows.setdefault((resident.name, resident.lives), []).append(
                (now / 3600, memory, descriptors))
            self.file.write("%.1f,%.2f,%s,%d,%d,%d\n" % (now, days, resident.name, resident.lives,
                                                         memory, descriptors))
        self.file.flush()

    @staticmethod
    def sum_up(rows):
        """Medians of memory and descriptors at the end of the first quarter and at the end, and how
        many bytes an hour were added between."""
        tenth = max(1, len(rows) // 10)
        quarter = len(rows) // 4
        parts = [[statistics.median(row[column] for row in part) for column in (1, 2)]
                 for part in (rows[quarter:quarter + tenth], rows[-tenth:])]
        hours, sizes = [r[0] for r in rows[quarter:]], [r[1] for r in rows[quarter:]]
        slope = 0.0
        if len(set(hours)) > 1:
            slope = statistics.linear_regression(hours, sizes).slope
        return parts[0], parts[1], slope

    def judge(self):
        found = []
        for (name, life), rows in self.rows.items():
            if len(rows) < LONG:
                continue
            first, last, _ = self.sum_up(rows)
            if last[0] > first[0] + GROWTH:
                found.append("%s grew from %.1f to %.1f MiB" % (name, first[0] / (1 << 20),
                                                                last[0] / (1 << 20)))
            if last[1] > first[1] + SPARE:
                found.append("%s grew from %d to %d descriptors" % (name, first[1], last[1]))
        return found

    def table(self):
        lines = ["%-14s %4s %8s %22s %16s %14s" % (
            "process", "life", "hours", "MiB, quarter to end", "MiB an hour", "descriptors")]
        for (name, life), rows in sorted(self.rows.items()):
            first, last, slope = self.sum_up(rows)
            lines.append("%-14s %4d %8.2f %22s %16.2f %14s" % (
                name, life, rows[-1][0] - rows[0][0],
                "%.1f to %.1f" % (first[0] / (1 << 20), last[0] / (1 << 20)), slope / (1 << 20),
                "%d to %d" % (first[1], last[1])))
        return "\n".join(lines)
