// Verify each line of standard input, {"secret", "headers", "body"}, and say "verified" or "refused" for it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	for lines := json.NewDecoder(os.Stdin); ; {
		var one struct {
			Secret  string
			Headers map[string]string
			Body    string
		}
		if err := lines.Decode(&one); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		webhook, err := standardwebhooks.NewWebhook(one.Secret)
		if err != nil {
			log.Fatal(err)
		}
		headers := http.Header{}
		for name, value := range one.Headers {
			headers.Set(name, value)
		}
		if webhook.Verify([]byte(one.Body), headers) == nil {
			fmt.Println("verified")
		} else {
			fmt.Println("refused")
		}
	}
}
