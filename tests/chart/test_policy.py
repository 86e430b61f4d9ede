"""Pods keep to the policy `restricted`; secrets stay in Secrets that exist; nobody has a right that is not needed."""

import ipaddress
import tomllib

import pytest

from tests.chart import rendering

DATABASE, RING, KAFKA = "FANOUT_DATABASE_URL_FILE", "FANOUT_KEYS_RING_FILE", "FANOUT_KAFKA_SASL_PASSWORD_FILE"
SCHEMAS = "FANOUT_SCHEMA_REGISTRY_PASSWORD_FILE"
VOLUMES = {"configMap", "projected", "emptyDir", "persistentVolumeClaim"}


def is_restricted(pod):
    """Hold a pod against the Pod Security Standard `restricted`, and against having a token of the API server."""
    whole = pod["securityContext"]
    assert (whole["runAsNonRoot"], whole["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert whole["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(VOLUMES & volume.keys() for volume in pod["volumes"])
    for container in pod["containers"]:
        own = container["securityContext"]
        assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
    return True


@pytest.mark.parametrize("values", rendering.VALUES)
def test_every_pod_keeps_to_the_policy_restricted(values):
    documents = rendering.rendered(values)
    found = [document["spec"]["template"]["spec"] for document in documents if document["kind"] in {"Deployment", "Job"}]
    found += [document["spec"] for document in documents if document["kind"] == "Pod"]
    assert all(is_restricted(pod) for pod in found)


@pytest.mark.parametrize("values", rendering.VALUES)
def test_the_platforms_pods_write_to_volumes_only(values):
    for pod in rendering.specs(rendering.rendered(values)):
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert "scratch" in {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("values", rendering.PRODUCTION)
def test_no_secret_is_made_and_none_may_be_read_over_the_api(values):
    kinds = {document["kind"] for document in rendering.rendered(values)}
    assert not {"Secret", "ClusterRole", "ClusterRoleBinding"} & kinds


@pytest.mark.parametrize("values", rendering.VALUES)
def test_secrets_reach_pods_as_files(values):
    for pod in rendering.specs(rendering.rendered(values)):
        [container] = pod["containers"]
        named = {variable["name"]: variable["value"] for variable in container["env"] if variable["name"].startswith("FANOUT_")}
        [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
        files = {f"/run/secrets/fanout/{item['path']}" for source in sources for item in source["secret"]["items"]}
        assert all(name.endswith("_FILE") for name in named)
        assert set(named.values()) == files


def secrets_of(values):
    """Return the variables of each component that name files of secrets."""
    return {
        component: {variable["name"] for variable in pod["containers"][0]["env"] if variable["name"].startswith("FANOUT_")}
        for component, pod in rendering.pods(rendering.rendered(values)).values()
    }


def test_each_role_gets_the_secrets_that_it_needs_and_no_others():
    assert secrets_of(rendering.EVERYTHING) == {
        "driver": {DATABASE, RING, KAFKA, SCHEMAS},
        "archive": {DATABASE, RING, KAFKA, SCHEMAS},
        "test": {DATABASE, RING, KAFKA},
        "serve": {RING, "FANOUT_API_DATABASE_URL_FILE"},
        "migrate": {DATABASE},
    }


@pytest.mark.parametrize("values", [rendering.EVERYTHING, rendering.DEVELOPMENT], ids=["everything", "development"])
def test_the_pods_of_the_api_do_not_get_the_owners_login(values):
    """Regression: pods of `serve` had `secrets.database`, whose login owns the tables, although the API logs in by its own."""
    [pod] = [pod for component, pod in rendering.pods(rendering.rendered(values)).values() if component == "serve"]
    [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert {item["path"] for source in sources for item in source["secret"]["items"]} == {"apiDatabase", "keyRing"}
    assert DATABASE not in secrets_of(values)["serve"]


def test_the_api_gets_the_password_of_kafka_to_publish_only():
    values = rendering.EVERYTHING | {"serve": rendering.EVERYTHING["serve"] | {"publishing": True}}
    assert secrets_of(values)["serve"] - secrets_of(rendering.EVERYTHING)["serve"] == {KAFKA}


def test_the_api_has_a_login_to_kafka_of_its_own():
    own = {"serve": rendering.EVERYTHING["serve"] | {"publishing": True, "kafkaUsername": "producers"}}
    values = rendering.EVERYTHING | own
    values |= {"secrets": rendering.EVERYTHING["secrets"] | {"apiKafkaPassword": {"name": "producers"}}}
    found = dict(rendering.pods(rendering.rendered(values)).values())
    named = {variable["name"]: variable["value"] for variable in found["serve"]["containers"][0]["env"]}
    assert named["FANOUT_KAFKA_SASL_USERNAME"] == "producers"
    [file] = [volume for volume in found["serve"]["volumes"] if volume["name"] == "secrets"]
    mounted = {source["secret"]["name"]: source["secret"]["items"][0]["path"] for source in file["projected"]["sources"]}
    assert named[KAFKA] == f"/run/secrets/fanout/{mounted['producers']}"
    assert "kafka" not in mounted
    assert KAFKA in {variable["name"] for variable in found["driver"]["containers"][0]["env"]}
    assert "FANOUT_KAFKA_SASL_USERNAME" not in {variable["name"] for variable in found["driver"]["containers"][0]["env"]}


@pytest.mark.parametrize("publishing", [False, True])
def test_the_route_of_publishers_is_on_with_serve_publishing_only(publishing):
    values = rendering.EVERYTHING | {"serve": rendering.EVERYTHING["serve"] | {"publishing": publishing}}
    maps = rendering.of_kind("ConfigMap", rendering.rendered(values))
    assert tomllib.loads(maps["here-fanout"]["data"]["fanout.toml"])["api"]["publishing"] is publishing


def test_only_a_driver_with_executors_has_rights_on_pods():
    documents = rendering.rendered(rendering.EXECUTORS)
    verbs = ["get", "list", "watch", "create", "delete", "deletecollection"]
    assert {name: role["rules"] for name, role in rendering.of_kind("Role", documents).items()} == {
        "here-fanout-all": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    }
    [binding] = rendering.of_kind("RoleBinding", documents).values()
    assert [subject["name"] for subject in binding["subjects"]] == ["here-fanout-all"]
    with_token = {
        pod["serviceAccountName"]
        for pod in rendering.specs(documents)
        for volume in pod["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))
    }
    assert with_token == {"here-fanout-all"}
    assert not {"Role", "RoleBinding"} & {document["kind"] for document in rendering.rendered(rendering.EVERYTHING)}


def test_executors_are_restricted_and_get_no_secret_and_no_token():
    pod = rendering.executor_template(rendering.EXECUTORS)["spec"]
    assert is_restricted(pod)
    assert pod["serviceAccountName"] == "here-fanout"
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} == {"persistentVolumeClaim", "emptyDir"}
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("listed", "added"),
    [([], []), (["2001:db8:5::/48"], ["2001:db8:5::/48"]), (["fc00::/7", "fd00::/8"], ["fd00::/8"])],
)
def test_endpoints_are_reached_by_both_families_of_addresses(listed, added):
    """Regression: the policy permitted IPv4 only, so that an endpoint with AAAA records alone was disabled.

    An IPv6 network in `exceptFor` stood below 0.0.0.0/0, where the API server refuses it.
    """
    ipv4 = ["10.0.0.0/8", "172.16.0.0/12"]
    own = {"exceptFor": [ipv4[0], *listed, ipv4[1]], "ports": [443]}
    values = rendering.EVERYTHING | {"networkPolicy": rendering.EVERYTHING["networkPolicy"] | own}
    egress = rendering.of_kind("NetworkPolicy", rendering.rendered(values))["here-fanout"]["spec"]["egress"]
    outside = {"0.0.0.0/0": ipv4, "::/0": ["fc00::/7", "fe80::/10", "::1/128", *added]}
    blocks = [{"ipBlock": {"cidr": cidr, "except": excepted}} for cidr, excepted in outside.items()]
    assert {"to": blocks, "ports": [{"port": 443}]} in egress


def test_no_private_or_metadata_address_counts_as_an_endpoint():
    """169.254.169.254 is where clouds have the metadata of a machine. Kafka and Postgres have rules of their own."""
    egress = rendering.of_kind("NetworkPolicy", rendering.rendered(rendering.EVERYTHING))["here-fanout"]["spec"]["egress"]
    blocks = [peer["ipBlock"] for rule in egress for peer in rule.get("to", ()) if "ipBlock" in peer]
    for address in (
        "169.254.169.254",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
    ):
        assert [block for block in blocks if permits(block, ipaddress.ip_address(address))] == [], address
    assert [block for block in blocks if permits(block, ipaddress.ip_address("203.0.113.7"))]


def permits(block, address):
    """Return True if an ipBlock of a NetworkPolicy has the address."""
    excepted = any(address in ipaddress.ip_network(network) for network in block.get("except", ()))
    return address in ipaddress.ip_network(block["cidr"]) and not excepted


def test_the_identity_of_a_cloud_reaches_every_service_account():
    values = rendering.EXECUTORS | {"serviceAccount": {"annotations": {"a/b": "c"}}}
    accounts = rendering.of_kind("ServiceAccount", rendering.rendered(values))
    assert {name: account["metadata"]["annotations"] for name, account in accounts.items()} == {
        "here-fanout": {"a/b": "c"},
        "here-fanout-all": {"a/b": "c"},
    }


def test_only_the_api_may_reach_the_identity_provider():
    provider = [{"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": [{"port": 8443}]}]
    policy = rendering.EVERYTHING["networkPolicy"] | {"identityProvider": provider}
    oidc = {"issuer": "https://10.0.0.7:8443", "audience": "fanout", "scopes": {"admins": "operator"}}
    values = rendering.EVERYTHING | {"networkPolicy": policy, "config": rendering.EVERYTHING.get("config", {}) | {"oidc": oidc}}
    documents = rendering.rendered(values)
    made = rendering.of_kind("NetworkPolicy", documents)
    spec = made["here-fanout-identity-provider"]["spec"]
    assert (spec["policyTypes"], spec["egress"]) == (["Egress"], provider)
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "serve"
    assert all("10.0.0.7" not in str(policy) for name, policy in made.items() if name != "here-fanout-identity-provider")
    assert tomllib.loads(rendering.settings_of(documents))["oidc"] == oidc
    assert "here-fanout-identity-provider" not in rendering.of_kind("NetworkPolicy", rendering.rendered(rendering.EVERYTHING))
