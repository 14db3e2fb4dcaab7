import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * One chat request by the JDK's own HTTP client; its body comes from standard input.
 *
 * <p>usage: java ChatCaller.java [--http2] [--stream] [--ca FILE] URL
 *
 * <p>Without --http2 the client is left in its default mode, as most services have it. On plain
 * http both modes send HTTP/1.1 with an attempt to upgrade to h2c; on https both negotiate by ALPN.
 * Prints one JSON object: status, version, body, and of a stream each event with its arrival time.
 */
public class ChatCaller {
    private record Event(double atSeconds, String data) {}

    public static void main(String[] arguments) throws Exception {
        List<String> flags = Arrays.asList(arguments);
        URI url = URI.create(arguments[arguments.length - 1]);
        HttpRequest request =
                HttpRequest.newBuilder(url)
                        .header("content-type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofByteArray(System.in.readAllBytes()))
                        .build();
        HttpClient client = client(flags);
        if (flags.contains("--stream")) {
            loadClasses(flags, url);
            stream(client, request);
        } else {
            HttpResponse<String> response =
                    client.send(request, HttpResponse.BodyHandlers.ofString());
            print(response, List.of(), response.body());
        }
    }

    private static HttpClient client(List<String> flags) throws Exception {
        HttpClient.Builder builder = HttpClient.newBuilder();
        if (flags.contains("--http2")) {
            builder.version(HttpClient.Version.HTTP_2);
        }
        int ca = flags.indexOf("--ca");
        if (ca >= 0) {
            builder.sslContext(trusting(flags.get(ca + 1)));
        }
        return builder.build();
    }

    private static SSLContext trusting(String pemFile) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream pem = new FileInputStream(pemFile)) {
            store.setCertificateEntry(
                    "ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    /**
     * A service has its classes loaded long before a request; so that times measure the mesh, not
     * the start of a JVM, a client of its own first gets a page, whatever the answer is.
     */
    private static void loadClasses(List<String> flags, URI url) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(url.resolve("/")).build();
        client(flags).send(request, HttpResponse.BodyHandlers.ofLines()).body().forEach(line -> {});
    }

    private static void stream(HttpClient client, HttpRequest request) throws Exception {
        long start = System.nanoTime();
        List<Event> events = new ArrayList<>();
        StringBuilder body = new StringBuilder();
        HttpResponse<Stream<String>> response =
                client.send(request, HttpResponse.BodyHandlers.ofLines());
        response.body()
                .forEach(
                        line -> {
                            body.append(line).append('\n');
                            if (line.startsWith("data: ")) {
                                double at = (System.nanoTime() - start) / 1e9;
                                events.add(new Event(at, line.substring("data: ".length())));
                            }
                        });
        print(response, events, body.toString());
    }

    private static void print(HttpResponse<?> response, List<Event> events, String body) {
        StringBuilder json = new StringBuilder("{");
        json.append("\"status\":").append(response.statusCode());
        json.append(",\"version\":").append(quote(response.version().name()));
        json.append(",\"headers\":{");
        String separator = "";
        for (Map.Entry<String, List<String>> header :
                new TreeMap<>(response.headers().map()).entrySet()) {
            json.append(separator).append(quote(header.getKey())).append(':');
            json.append(quote(String.join(", ", header.getValue())));
            separator = ",";
        }
        json.append("},\"events\":[");
        separator = "";
        for (Event event : events) {
            json.append(separator).append("{\"at_s\":").append(event.atSeconds());
            json.append(",\"data\":").append(quote(event.data())).append('}');
            separator = ",";
        }
        json.append("],\"body\":").append(quote(body)).append("}\n");
        byte[] output = json.toString().getBytes(StandardCharsets.UTF_8);
        System.out.write(output, 0, output.length);
        System.out.flush();
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\').append(letter);
            } else if (letter < ' ') {
                quoted.append(String.format("\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }
}
