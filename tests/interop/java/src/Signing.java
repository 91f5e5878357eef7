// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** Signs requests as users of the official client do. */
final class Signing {
    private Signing() {
    }

    /** Returns null if the command has no keys. */
    static RPCHook hook(JsonObject order) {
        return Orders.has(order, "accessKey")
            ? new AclClientRPCHook(
                new SessionCredentials(Orders.text(order, "accessKey"), Orders.text(order, "secretKey")))
            : null;
    }
}
