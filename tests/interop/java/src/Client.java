// SPDX-License-Identifier: Apache-2.0

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The official client as a process that executes commands: one JSON object per line on standard input, one answer per
 * line on standard output, {@code {"ok": ...}} or {@code {"error": "..."}}. A JVM starts slowly, so one serves many
 * tests.
 *
 * <p>Compiles against 4.9 and 5.x; comments mark the places where their APIs differ.
 */
public final class Client {
    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private interface Command {
        Object run(JsonObject order) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // some loggers write to standard output
        Map<String, Command> commands = commands(args[0]);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            answers.println(JSON.toJson(answer(commands, JSON.fromJson(line, JsonObject.class))));
        }
        System.exit(0); // threads of running clients would keep the process alive
    }

    private static Map<String, Object> answer(Map<String, Command> commands, JsonObject order) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            Command command = commands.get(order.get("command").getAsString());
            if (command == null) {
                throw new IllegalArgumentException("no such command");
            }
            answer.put("ok", command.run(order));
        } catch (Throwable e) {
            e.printStackTrace();
            Throwable told = e instanceof InvocationTargetException ? e.getCause() : e;
            answer.put("error", told.toString());
        }
        return answer;
    }

    private static Map<String, Command> commands(String nameServer) {
        Producers producers = new Producers(nameServer);
        Consumers consumers = new Consumers(nameServer);
        Admin admin = new Admin(nameServer);
        Map<String, Command> commands = new LinkedHashMap<>();
        commands.put("start_producer", producers::start);
        commands.put("stop_producer", producers::stop);
        commands.put("send", producers::send);
        commands.put("send_in_transaction", producers::sendInTransaction);
        commands.put("asked", producers::asked);
        commands.put("request", producers::request);
        commands.put("create_topic", producers::createTopic);
        commands.put("query_by_key", producers::queryByKey);
        commands.put("view_by_id", producers::viewById);
        commands.put("offsets", producers::offsets);
        commands.put("start_push_consumer", consumers::startPush);
        commands.put("start_lite_pull", consumers::startLitePull);
        commands.put("stop_consumer", consumers::stop);
        commands.put("received", consumers::received);
        commands.put("queues_of", consumers::queuesOf);
        commands.put("mqadmin", admin::run);
        return commands;
    }
}
