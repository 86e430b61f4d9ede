// Verify each line of standard input, {"secret", "headers", "body"}, and say "verified" or "refused" for it.
import { readFileSync } from "node:fs";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const { secret, headers, body } = JSON.parse(line);
  try {
    new Webhook(secret).verify(body, headers);
    console.log("verified");
  } catch (refusal) {
    if (!(refusal instanceof WebhookVerificationError)) throw refusal;
    console.log("refused");
  }
}
