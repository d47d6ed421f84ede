document.getElementById("app").textContent = "Backchannel is running. Clients connect by WebSocket at /ws.";
