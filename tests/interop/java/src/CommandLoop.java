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
import java.util.function.Supplier;

/**
 * Executes commands: one JSON object per line on standard input, one answer per line on standard output,
 * {@code {"ok": ...}} or {@code {"error": "..."}}. A JVM starts slowly, so one serves many tests.
 */
final class CommandLoop {
    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    interface Command {
        Object run(JsonObject order) throws Exception;
    }

    private CommandLoop() {
    }

    /** Executes commands until the input ends, and ends the process. */
    static void run(Supplier<Map<String, Command>> make) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // some loggers write to standard output
        Map<String, Command> commands = make.get();
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
}
