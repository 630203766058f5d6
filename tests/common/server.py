"""An unmodified llama-server with the plug-in loaded, for one test: started on a free port, asked over HTTP, ended with
an interrupt so that it frees its context and the plug-in writes its counters."""

import concurrent.futures
import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import host


class Server:
    def __init__(self, test, model, *arguments, policy="dense", with_plugin=True, timeout=90):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.stats = test.stats_file()
        self.log_path = test.folder / f"server-{self.port}.log"
        command = [host.program("llama-server"), "-m", model, "--host", "127.0.0.1", "--port", self.port, "-fa", "on",
                   "-t", host.N_THREADS, "--no-webui", "--offline", *arguments]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=host.environment(policy, self.stats.path, with_plugin))
        test.addCleanup(self.stop)
        deadline = time.monotonic() + timeout
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"llama-server does not answer\n{self.log()[-4000:]}")
            try:
                if self.get("/health").get("status") == "ok":
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(0.05)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def post(self, path, body, timeout=240):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: HTTP {error.code} {error.read()[:1000]}\n{self.log()[-3000:]}") from error

    def complete(self, prompt, n, slot=0, **more):
        """Greedy completion of text or token ids; the whole answer, its token ids under "tokens"."""
        return self.post("/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "id_slot": slot,
                                         "return_tokens": True, "ignore_eos": True, "cache_prompt": True, **more})

    def complete_at_once(self, requests):
        """[(prompt, n, slot)] by as many clients at the same time."""
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.complete(*request), requests))

    def complete_list(self, prompts, n):
        """One request with several prompts: the server queues them together, so that all begin in the same batch."""
        answers = self.post("/completion", {"prompt": prompts, "n_predict": n, "temperature": 0, "return_tokens": True,
                                            "ignore_eos": True})
        return sorted(answers, key=lambda answer: answer["index"])

    def tokens(self, text):
        return self.post("/tokenize", {"content": text})["tokens"]

    def chat(self, content, n):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": n,
                                                  "temperature": 0})

    def stop(self):
        """Ends the server as a user does; the counters of the freed context."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        lines = self.stats.lines()
        return lines[-1] if lines else None
