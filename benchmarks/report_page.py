"""What the page of a study of 2,000 runs takes: `python -m benchmarks.report_page`.

CPU seconds of building everything, the pictures for papers among it, in a process that has nothing imported
yet; and the page's size.
"""

import tempfile
import time
from pathlib import Path

from tests.analysis.conftest import write_metrics
from tests.analysis.test_browser import big_records

from headcount.analysis import report
from headcount.study.store import Study


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder) / "big")
        for record in big_records():
            study.write_record(record)
            if record.status == "completed":
                write_metrics(study, record, steps=50)
        started = time.process_time()
        page = report.build(study)
        seconds = time.process_time() - started
        print(f"2,000 runs: {seconds:.1f} CPU s, {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
