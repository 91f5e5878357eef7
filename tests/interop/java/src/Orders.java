// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

/** Reads the fields of a command; a field with a fallback is optional. */
final class Orders {
    private Orders() {
    }

    static String text(JsonObject order, String name) {
        return order.get(name).getAsString();
    }

    static String text(JsonObject order, String name, String fallback) {
        return has(order, name) ? text(order, name) : fallback;
    }

    static int number(JsonObject order, String name, int fallback) {
        return has(order, name) ? order.get(name).getAsInt() : fallback;
    }

    /** Returns a boolean field; a missing one is false. */
    static boolean is(JsonObject order, String name) {
        return has(order, name) && order.get(name).getAsBoolean();
    }

    static boolean has(JsonObject order, String name) {
        JsonElement value = order.get(name);
        return value != null && !value.isJsonNull();
    }
}
