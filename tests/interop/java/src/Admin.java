// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin inside this JVM: as a separate process every command takes three seconds longer, because the client's network
 * threads stop late.
 */
final class Admin {
    private final String nameServer;

    Admin(String nameServer) {
        this.nameServer = nameServer;
    }

    /** Returns all output of a command, including the stack trace, which is its only sign of a failure. */
    Object run(JsonObject order) throws IllegalAccessException {
        forgetCommands();
        List<String> words = new ArrayList<>();
        for (JsonElement word : order.getAsJsonArray("words")) {
            words.add(word.getAsString());
        }
        words.add(1, "-n");
        words.add(2, nameServer);
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream paper = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(paper);
        System.setErr(paper);
        try {
            MQAdminStartup.main0(words.toArray(new String[0]), Signing.hook(order));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    /** Removes all command objects: a second use of one would find the client of the first, which is shut down. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) { // its name differs between 4.9 and 5.x
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
