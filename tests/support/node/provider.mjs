// An OpenID Connect provider (the certified package `oidc-provider`) on a free port, which it prints. A client gets tokens for the
// resource `fanout` by its credentials. Arguments: the folder of the packages, and a JWKS with private keys.
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [folder, keys] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { default: Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));

const algorithm = JSON.parse(keys).keys[0].alg;
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    jwks: JSON.parse(keys),
    clientDefaults: { id_token_signed_response_alg: algorithm },
    clients: [
      {
        client_id: "ann",
        client_secret: "secret",
        grant_types: ["client_credentials"],
        redirect_uris: [],
        response_types: [],
      },
    ],
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          scope: "fanout:admin",
          audience: resource,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: algorithm } },
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
