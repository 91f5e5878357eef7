// SPDX-License-Identifier: Apache-2.0

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The official remoting client as a process that executes commands.
 *
 * <p>Compiles against 4.9 and 5.x; comments mark the places where their APIs differ.
 */
public final class Client {
    private Client() {
    }

    public static void main(String[] args) throws Exception {
        CommandLoop.run(() -> commands(args[0]));
    }

    private static Map<String, CommandLoop.Command> commands(String nameServer) {
        Producers producers = new Producers(nameServer);
        Consumers consumers = new Consumers(nameServer);
        Admin admin = new Admin(nameServer);
        FirstMessages firstMessages = new FirstMessages(nameServer);
        Map<String, CommandLoop.Command> commands = new LinkedHashMap<>();
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
        commands.put("first_messages", firstMessages::race);
        commands.put("mqadmin", admin::run);
        return commands;
    }
}
