"""A Kubernetes cluster of one node: the real server, controllers, scheduler, kubelet, containerd.

`python -m tests.deploy.cluster` starts one to try things with. All of it listens on loopback, and
on an address added to the loopback interface, at which pods reach servers of this machine.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tailerd import __version__
from tests.clouds.servers import cache_folder
from tests.deploy import chart, engine
from tests.deploy.names import NameServer
from tests.deploy.programs import KUBERNETES, ProgramsUnavailableError, build_programs
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.waiting import PATIENCE_SECONDS

HOST = "10.98.0.1"
"""Address at which pods reach servers of this machine."""
NODE = "node1"
IMAGE = f"tailerd:{__version__}"
PACKAGES = "containerd containernetworking-plugins iproute2 mount"
_PLUGINS = Path("/usr/lib/cni")
_POD_NETWORK = "10.97.0.0/24"
_SERVICES = "10.99.0.0/16"
_DOMAIN = "cluster.local"
_PAUSE = "localhost/pause:1"
_ADMISSION = "NamespaceLifecycle,ServiceAccount,PodSecurity"
_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/containers"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Without CAP_SYS_RESOURCE no score can be lowered, and no pod would start.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
"""


class ClusterUnavailableError(Exception):
    """No cluster can run here; the message says which part failed, and how."""


class Cluster:
    """The one cluster of this machine, in a folder of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        """Prepare; `start` starts it."""
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._programs = programs
        self.address = f"https://{HOST}:{free_port()}"
        self._etcd = free_port()
        self._token = secrets.token_hex(16)
        self._processes: dict[str, ServerProcess] = {}
        self._names: NameServer | None = None

    def kubectl(self, *arguments: str | Path, manifests: object = None) -> str:
        """Run kubectl and return its output; `manifests`, if any, are its standard input."""
        command = [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        if manifests is None:
            return engine.run(command)
        path = self.folder / "manifests.json"
        path.write_text(json.dumps(manifests))
        return engine.run([*command, "--filename", path])

    def kubectl_words(self, *arguments: str) -> list[str]:
        """Return a command of kubectl."""
        return [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]

    def read(self, *arguments: str) -> Any:
        """Return an object of the cluster, as `kubectl get` finds it."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def helm(self, *arguments: str | Path) -> str:
        """Run Helm on this cluster and return its output."""
        return engine.run([chart.helm_program(), "--kubeconfig", self.kubeconfig, *arguments])

    def add_volume(
        self,
        name: str,
        folder: Path,
        *,
        capacity: dict[str, str],
        kind: str = "",
        owner: dict[str, str] | None = None,
    ) -> None:
        """Offer a folder as a volume of a storage class; to any claim, or to the one of `owner`."""
        node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
        spec = {
            "capacity": capacity,
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": kind,
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            **({"claimRef": owner} if owner else {}),
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
        self.kubectl("apply", manifests={**volume, "spec": spec})

    def load_image(self, image: str, name: str) -> None:
        """Give the node an image of the engine under a whole name, with its registry."""
        file = self.folder / "image.tar"
        engine.buildah("push", image, f"docker-archive:{file}:{name}")
        engine.run([*self._ctr(), "images", "import", "--snapshotter=overlayfs", file])
        file.unlink()

    def kill_container(self, pod: str, namespace: str) -> None:
        """Send SIGKILL to the first process of a pod's only container."""
        [status] = self.read("pod", pod, f"--namespace={namespace}")["status"]["containerStatuses"]
        name = status["containerID"].rpartition("/")[2]
        tasks = engine.run([*self._ctr(), "tasks", "list"]).splitlines()
        [pid] = [line.split()[1] for line in tasks if line.startswith(name)]
        os.kill(int(pid), signal.SIGKILL)

    def start(self) -> None:
        """Start all parts, and wait until the node is ready for pods.

        Raises:
            ClusterUnavailableError: A part ended or is not ready in time; with the end of its log.
        """
        _remove_leftovers(self.folder)
        self.folder.mkdir(parents=True)
        try:
            self._write_configuration()
            self._start_server()
            self._start_node()
            self._await(lambda: "True" in self.kubectl(*_NODE_READY), "kubelet")
            self._await(lambda: self.read("serviceaccount", "default"), "kube-controller-manager")
            self._names = NameServer(HOST, self._find_pods)
        except RuntimeError as error:
            raise ClusterUnavailableError(f"No cluster can run here: {error}") from error

    def stop(self) -> None:
        """End all parts and containers, and remove everything they left."""
        if self._names is not None:
            self._names.close()
        for process in reversed(self._processes.values()):
            process.end(signal.SIGKILL, seconds=10)
        _remove_leftovers(self.folder)

    def _find_pods(self, name: str) -> list[str]:
        """Return the addresses of the pods of a Service, ready or not as it publishes them."""
        service, _, rest = name.lower().removesuffix(f".svc.{_DOMAIN}").partition(".")
        if not name.lower().endswith(f".svc.{_DOMAIN}") or "." in rest:
            return []
        label = f"--selector=kubernetes.io/service-name={service}"
        slices = self.read("endpointslices", f"--namespace={rest}", label)["items"]
        endpoints = [end for each in slices for end in each["endpoints"] or ()]
        return [end["addresses"][0] for end in endpoints if end["conditions"]["ready"]]

    def _start_server(self) -> None:
        engine.run(["ip", "address", "replace", f"{HOST}/32", "dev", "lo"])
        folder, etcd = self.folder, f"http://127.0.0.1:{self._etcd}"
        peers = f"http://127.0.0.1:{free_port()}"
        self._run("etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}",
                  f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}",
                  f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
                  "--unsafe-no-fsync")  # fmt: skip
        port = self.address.rpartition(":")[2]
        self._run("kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={port}",
                  f"--bind-address={HOST}", f"--advertise-address={HOST}",
                  f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens",
                  f"--service-account-key-file={folder}/key",
                  f"--service-account-signing-key-file={folder}/key",
                  "--service-account-issuer=https://kubernetes.default.svc",
                  "--authorization-mode=RBAC", f"--service-cluster-ip-range={_SERVICES}",
                  f"--enable-admission-plugins={_ADMISSION}", "--endpoint-reconciler-type=none",
                  "--kubelet-preferred-address-types=InternalIP")  # fmt: skip
        self._await(lambda: self.kubectl("get", "--raw=/readyz"), "kube-apiserver")
        client = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        self._run("kube-controller-manager", *client,
                  f"--service-account-private-key-file={folder}/key",
                  f"--root-ca-file={folder}/certificates/apiserver.crt")  # fmt: skip
        self._run("kube-scheduler", *client)

    def _start_node(self) -> None:
        self._run("containerd", f"--config={self.folder}/containerd.toml")
        self._await(lambda: engine.run([*self._ctr(), "version"]), "containerd")
        with engine.locked("containers"):
            container = engine.buildah("from", "scratch")
            engine.buildah("add", "--quiet", container, self._programs / "pause", "/")
            engine.buildah("config", '--entrypoint=["/pause"]', container)
            image = engine.buildah("commit", "--quiet", "--rm", container)
        self.load_image(image, _PAUSE)
        self._run("kubelet", f"--config={self.folder}/kubelet.json", f"--node-ip={HOST}",
                  f"--kubeconfig={self.kubeconfig}", f"--hostname-override={NODE}",
                  f"--root-dir={self.folder}/kubelet",
                  f"--cert-dir={self.folder}/certificates")  # fmt: skip

    def _run(self, name: str, *arguments: str) -> None:
        program = self._programs / name
        words = [str(program if program.exists() else name), *arguments]
        log = self.folder / f"{name}.log"
        self._processes[name] = ServerProcess(words, log=log, cwd=self.folder)

    def _await(self, probe: Callable[[], object], name: str) -> None:
        """Wait until a probe succeeds; RuntimeError with the log of the part it depends on."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if probe():
                    return
                problem = ""
            except RuntimeError as error:
                problem = str(error)
            ended = [each for each, process in self._processes.items() if not process.is_running]
            if ended or time.monotonic() > deadline:
                name = ended[0] if ended else name
                state = "ended" if ended else f"is not ready after {PATIENCE_SECONDS:.0f} s"
                lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
                raise RuntimeError("\n".join([f"{name} {state}. {problem}", *lines[-25:]]))
            time.sleep(0.2)

    def _ctr(self) -> list[str]:
        return ["ctr", f"--address={self.folder}/containerd.sock", "--namespace=k8s.io"]

    def _write_configuration(self) -> None:
        folder = self.folder
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        (folder / "tokens").write_text(f"{self._token},admin,admin,system:masters\n")
        self.kubeconfig.write_text(yaml.safe_dump(self._client_configuration()))
        text = _CONTAINERD.format(folder=folder, pause=_PAUSE, plugins=_PLUGINS)
        (folder / "containerd.toml").write_text(text)
        (folder / "cni").mkdir()
        ranges = {"type": "host-local", "ranges": [[{"subnet": _POD_NETWORK}]]}
        ipam = {**ranges, "dataDir": f"{folder}/addresses", "routes": [{"dst": "0.0.0.0/0"}]}
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{"type": "ptp", "ipam": ipam}],
        }
        (folder / "cni/pods.conflist").write_text(json.dumps(network))
        (folder / "kubelet.json").write_text(json.dumps(self._kubelet_configuration()))

    def _client_configuration(self) -> dict[str, object]:
        cluster = {"server": self.address, "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "admin"}}],
            "current-context": "c",
        }

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": HOST,
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "failCgroupV1": False,
            "clusterDNS": [HOST],
            "clusterDomain": _DOMAIN,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "podLogsDir": f"{self.folder}/logs",
            "volumePluginDir": f"{self.folder}/plugins",
            # Tests look at what probes and mounts make of a change.
            "syncFrequency": "5s",
        }


_NODE_READY = (
    *("get", "node", NODE, "--ignore-not-found"),
    '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}',
)


def _remove_leftovers(folder: Path) -> None:
    """End the containers that a cluster left, and remove its mounts and files."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{folder}/containerd.sock" in path.read_text(errors="replace").split("\0"):
                pid = path.parent.name
                children = (path.parent / "task" / pid / "children").read_text().split()
                for each in (*children, pid):
                    os.kill(int(each), signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([each for each in mounts if each.startswith(f"{folder}/")]):
        with suppress(RuntimeError):
            engine.run(["umount", "--lazy", mount])
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(RuntimeError):
        engine.run(["ip", "address", "delete", f"{HOST}/32", "dev", "lo"])


@contextmanager
def run_cluster() -> Iterator[Cluster]:
    """Run the one cluster of this machine, with the image of this checkout without Spark.

    Raises:
        ClusterUnavailableError: It cannot run here.
    """
    try:
        image = engine.build_image("none")
        programs = build_programs()
    except (engine.EngineUnavailableError, ProgramsUnavailableError) as error:
        raise ClusterUnavailableError(str(error)) from error
    if not (_PLUGINS / "ptp").exists() or shutil.which("containerd") is None:
        text = "containerd or its network plugins are not installed"
        raise ClusterUnavailableError(f"{text}: apt-get install {PACKAGES}.")
    with engine.locked("cluster"):
        cluster = Cluster(cache_folder() / "cluster", programs)
        try:
            cluster.start()
            cluster.load_image(image, f"docker.io/library/{IMAGE}")
            yield cluster
        finally:
            cluster.stop()


@click.command(epilog="Example: python -m tests.deploy.cluster")
def main() -> None:
    """Run a cluster to try things with, until ^C, and print how to reach it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with run_cluster() as running:
            for name in ("volume-1", "volume-2"):
                folder = running.folder / name
                folder.mkdir(mode=0o777)
                # Pods are not root, and the mask of this process applied above.
                folder.chmod(0o777)
                running.add_volume(name, folder, capacity={"storage": "10Gi"})
            click.echo(
                f"Kubernetes {KUBERNETES}, with the image {IMAGE} and two volumes. ^C stops it."
            )
            click.echo(f"export KUBECONFIG={running.kubeconfig} PATH={cache_folder()}/bin:$PATH")
            with suppress(KeyboardInterrupt):
                signal.pause()
    except ClusterUnavailableError as problem:
        raise click.ClickException(str(problem)) from problem


if __name__ == "__main__":
    main()
